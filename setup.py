"""Finds the packages below each root that `package-dir` in pyproject.toml names."""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup

_PLACES = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]

if __name__ == "__main__":
    setup(
        packages=[
            package
            for root, place in _PLACES.items()
            for package in (root, *(f"{root}.{below}" for below in find_packages(place)))
        ]
    )
