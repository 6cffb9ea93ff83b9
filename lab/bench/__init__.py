"""What rksp costs and how right its readers and monitors are: a script a question.

Run them as `python -m lab.bench.NAME`.
"""
