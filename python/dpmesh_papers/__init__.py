"""The papers' tables and figures, one module for each paper: their numbers beside ours.

An experiment is a function of the folder for its files, which is created if missing; of ``seeds``,
the number of repetitions, if it has any; and of ``progress``, called with a line of text for each
finished step. It returns the files that it wrote: a figure, a CSV, and usually a text with the
paper's numbers beside ours. `FileNotFoundError` names the data set that is missing.
"""
