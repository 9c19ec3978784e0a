"""Pure layers. Nothing here knows a paper's training recipe."""
