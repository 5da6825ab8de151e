"""The JUnit report, for CI that shows test results."""

from xml.etree import ElementTree

from conformance.report import TargetReport
from conformance.report.failure import text


def render(reports: list[TargetReport]) -> str:
    root = ElementTree.Element("testsuites", name="gatespec conformance")
    for report in reports:
        failed = {id(result) for result in report.failures}
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=report.target,
            tests=str(len(report.results)),
            failures=str(len(failed)),
            errors="0",
            skipped=str(sum(not r.judged and id(r) not in failed for r in report.results)),
            time=f"{report.seconds:.3f}",
        )
        for result in report.results:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=f"{report.target}.{result.law.op}",
                name=f"{result.law.name}[{result.dtype}]",
                time=f"{result.seconds:.3f}",
            )
            if id(result) in failed:
                failure = ElementTree.SubElement(case, "failure", message=_legal(result.reason or ""))
                failure.text = _legal(text(report, result))
            elif not result.judged:
                ElementTree.SubElement(case, "skipped", message=_legal(result.reason or ""))
            elif result.status in ("differs", "known", "fixed"):
                # JUnit has no word for a known failure or a different decision; they go where a test's output goes.
                ElementTree.SubElement(case, "system-out").text = _legal(result.reason or "")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _legal(said: str) -> str:
    """The text without the control characters that XML forbids."""
    return "".join(c for c in said if c in "\t\n\r" or ord(c) >= 32)
