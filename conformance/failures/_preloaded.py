"""An interpreter that has imported a framework and runs scripts, each in a copy of itself.

It is started as a program of its own, with the modules to import as arguments, and knows nothing of this suite. Each
line that it reads is the path of a script. It answers with a line of JSON: the exit status, negative for a signal, what
the script printed as output and as errors, and the seconds of computation that it took.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import sys
import tempfile
import traceback


def main() -> None:
    # What an import prints is no answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    for name in sys.argv[1:]:
        # A script that needs a module which cannot be imported says so itself.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # A collection would write to every page of memory that the copies share.
    gc.freeze()
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(own.ru_utime + own.ru_stime, file=answers)
    for line in sys.stdin:
        print(json.dumps(_answer(line.rstrip("\n"))), file=answers)


def _answer(path: str) -> list[object]:
    before = _of_children()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            for number, to in ((0, os.open(os.devnull, os.O_RDWR)), (1, output.fileno()), (2, errors.fileno())):
                os.dup2(to, number)
            os._exit(_run(path))
        _, ended = os.waitpid(child, 0)
        printed = []
        for file in (output, errors):
            file.seek(0)
            printed.append(file.read().decode(errors="replace"))
    return [os.waitstatus_to_exitcode(ended), *printed, _of_children() - before]


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(path: str) -> int:
    """Run a script as the interpreter would, and return its exit status."""
    sys.argv = [path]
    sys.path[0] = os.path.dirname(path)
    status = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        if not isinstance(ended.code, int | None):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status & 0xFF


if __name__ == "__main__":
    main()
