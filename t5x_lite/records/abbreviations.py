"""English words that end in a period within a sentence.

C4's sentence counter takes them where NLTK's own parameters are missing, and documents are divided
into sentences by them.
"""

_ENGLISH = """
mr mrs messrs mme mlle dr drs prof rev hon pres gov sen sens col lt maj capt cmdr cpl sgt adm atty
supt insp st ste jr sr esq bros co corp inc ltd llc plc mfg assn dept univ est dist div ave blvd
rd hwy ft mt mts apt bldg jan feb apr jun jul aug sept sep oct nov dec tue tues wed thu thur thurs
fri vs etc cf al ibid viz approx ca vol vols fig figs eq eqs sec secs ch chap ed eds edn pp p pt
pts resp incl excl misc tel ext a.m p.m a.d b.c b.c.e c.e e.g i.e u.s u.s.a u.k u.n e.u d.c n.y
l.a ph.d m.d b.a m.a b.sc m.sc ll.b ll.d r.n j.d j.r g.m n.b p.s q.v s.a n.a ala ariz calif colo
conn fla ga kan ky md mich minn mo mont neb nev okla pa tenn tex va vt wis wyo ont ms gen rep
"""
ABBREVIATIONS = frozenset(_ENGLISH.split())
"""Words that end in a period within a sentence, lower case, without that period. Words that often
end sentences are left out even where they are abbreviations too ("no", "sat", "mass")."""
