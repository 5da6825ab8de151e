"""The end of a script that makes one call: it checks the result, and exits with 1 if the law is broken."""

from typing import Any

from conformance.comparison import Comparison, HasNaN, Refusal, WrongDtype, WrongShape
from conformance.laws import Law
from conformance.outcome import Counterexample


def check_lines(law: Law, found: Counterexample, evidence: Any, framework: str) -> list[str]:
    """Lines that judge ``got``, or ``raised`` if the call should be refused."""
    broken, of = f"{law.id} is broken", found.where
    end = f'print("{law.id} holds here")'
    if evidence is None:
        return [f'print("nothing was raised: {law.id} holds here")']
    if isinstance(evidence, Refusal):
        return [*_refusal(broken, evidence), end]
    if isinstance(evidence, WrongDtype):
        return [
            f'if str(got.dtype).removeprefix("torch.") != "{evidence.expected}":',
            f'    sys.exit(f"{broken}: {of} is in {{got.dtype}}, expected {evidence.expected}")',
            end,
        ]
    if isinstance(evidence, WrongShape):
        shape = tuple(evidence.expected)
        return [
            f"if tuple(got.shape) != {shape}:",
            f'    sys.exit(f"{broken}: {of} has shape {{tuple(got.shape)}}, expected {shape}")',
            end,
        ]
    lines = ["got = got.detach().double().cpu()"] if framework == "torch" else []
    if isinstance(evidence, HasNaN):
        return [
            *lines,
            "nans = np.argwhere(np.isnan(np.asarray(got, np.float64)))",
            "if nans.size:",
            f'    sys.exit(f"{broken}: {of} is NaN at {{nans[0].tolist()}}")',
            end,
        ]
    return [*lines, *_comparison(broken, of, evidence, framework), end]


def _comparison(broken: str, of: str, evidence: Comparison, framework: str) -> list[str]:
    lines = [
        'got, expected, allowed = (np.asarray(x, np.float64) for x in (got, saved["expected"], saved["allowed"]))',
    ]
    if evidence.m is not None:
        axes = ", ".join(["..."] + ["None"] * (evidence.expected.ndim - evidence.m.ndim))
        m = "m.detach().double().cpu()" if framework == "torch" else "m"
        lines += [
            "# A state stands for got·exp(m): it is compared in units of the reference's m.",
            f'm, m_expected = np.asarray({m}, np.float64), np.asarray(saved["expected_m"])',
            'with np.errstate(invalid="ignore", over="ignore"):',
            f"    got = got * np.where(m == m_expected, m != -np.inf, np.exp(m - m_expected))[{axes}]",
        ]
    wrong = "{of} at {list(at)} is {got[at]}, expected {expected[at]} ± {allowed[at]:.3g}".replace("{of}", of)
    return [
        *lines,
        'with np.errstate(invalid="ignore"):',
        "    held = (abs(got - expected) <= allowed) | (got == expected) | (np.isnan(got) & np.isnan(expected))",
        "if not held.all():",
        "    at = tuple(np.argwhere(~held)[0].tolist())",
        f'    sys.exit(f"{broken}: {wrong}")',
    ]


def _refusal(broken: str, refusal: Refusal) -> list[str]:
    text = f" or str(raised) != {refusal.text!r}" if refusal.compares_text else ""
    expected = f"{refusal.type}: {refusal.text}"
    return [
        f'if type(raised).__name__ != "{refusal.type}"{text}:',
        f'    sys.exit(f"{broken}: raised {{raised!r}}; expected " + {expected!r})',
    ]
