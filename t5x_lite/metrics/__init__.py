"""Task metrics, functions (targets, predictions) -> {name: value}, without JAX or TensorFlow.

Values are fractions (accuracy 0.5, not 50; BLEU 0.28, not 28). All metrics raise ValueError for
empty input and for sequences of different lengths. Undefined values, such as a correlation with a
constant, are 0, so that every value is a finite number.

    classification.py  accuracy, F1, Matthews       correlation.py  Pearson, Spearman
    text.py            exact match, SQuAD           groups.py       MultiRC, ReCoRD
    no_answer.py       SQuAD 2.0
    generation.py      BLEU, ROUGE                  bootstrap.py    confidence intervals
    benchmarks.py      the scores of GLUE and SuperGLUE
    ranking.py         nDCG, MRR and recall of retrieval
"""
