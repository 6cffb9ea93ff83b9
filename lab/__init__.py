"""The authors' part: it trains labelled runs, fits the classifiers to them, and measures rksp.

It imports rksp and is never installed: run `python -m lab` in the root of a checkout.
"""
