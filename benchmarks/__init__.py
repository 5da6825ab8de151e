"""Speed, costs and faults, measured.

A module imports only what stands below it in this drawing, or in its own folder:

    command                  ``python -m benchmarks``
    judged/ · gpu/           public implementations judged by the suite; kernels: ahead of time, tuning, proofs
    report/ · costs/         pages and pictures of results; costs of calls and of packing
    speed/                   timing: operations, cases, contenders, conformity, goals, results
    peers/                   adapters of public implementations; the registry of these and of their faults
"""
