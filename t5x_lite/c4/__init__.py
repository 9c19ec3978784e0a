"""Construction of the C4 corpus from Common Crawl: cleaning rules, and drivers that run them.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
(JMLR 2020), section 2.2, and `tensorflow_datasets.text.c4_utils` 3.x, with which the published data
was made. `config.Cleaning` has every threshold; `config.SOURCES` has the source of each rule.
"""
