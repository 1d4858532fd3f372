"""The lazy front end: `Tensor` builds graphs of the compiler's IR and computes their values."""
