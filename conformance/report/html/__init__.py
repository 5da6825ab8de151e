"""The HTML report: one self-contained file, readable on a phone, on paper and in dark mode."""

from conformance.report.html._page import render

__all__ = ["render"]
