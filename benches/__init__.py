"""Benchmarks of speed, next to the best alternatives and the machine's limits.

``python -m benches`` measures all, on one thread and on all cores; ``python -m benches noise -t 4``
one of them on 4 threads; ``--record`` writes the results into the reference file. dpmesh must be
built in release mode (``pip install .``); peers that are not installed are skipped with a message.
"""
