"""C4 from Common Crawl: the rules as pure functions over text, and the drivers that run them.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
(JMLR 2020), section 2.2, and `tensorflow_datasets.text.c4_utils` 3.x, which made the published
data. `config.Cleaning` holds every threshold; `config.SOURCES` gives the source of each rule.
"""
