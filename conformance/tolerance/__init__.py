"""How far an element may be from its correct value, and arrays that are compared with theirs."""
