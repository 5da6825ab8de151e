"""The error that an element may have, and arrays that are compared with their correct values."""
