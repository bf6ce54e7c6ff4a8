"""For people who add rules, encodings and containers: builders of sound and of broken weights.

- `content`: healthy bytes for any registered encoding, made from its declaration.
- `layers`: weights kept in several tensors (GPTQ, AWQ, FP8, NVFP4, ...), sound or off on purpose.
- `recipes`: test cases written as data: build tensors, poke bits, expect findings.
- `planted`: files with many planted faults, with their sound twins and a list of the faults.
- `gguf_writer`, `safetensors_writer`: whole files, every header field at will.

Nothing here is imported by the rest of qassay.
"""
