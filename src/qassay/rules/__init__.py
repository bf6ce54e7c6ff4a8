"""One file a rule, named code and defect; each is a pure function from facts to findings."""
