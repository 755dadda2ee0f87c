"""Studies of accuracy on real data: a program each, ``python -m dpmesh_papers.studies.NAME``.

Each writes its rows to docs/results of the checkout that it is run from, with the commit, settings
and seeds that made them; pages take their numbers from there.
"""
