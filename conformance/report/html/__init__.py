"""The HTML report: one file that needs no other, readable on a phone, on paper and in the dark."""

from conformance.report.html._page import render

__all__ = ["render"]
