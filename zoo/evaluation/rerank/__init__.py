"""Re-ranking of search results without labels.

Each method is for one query and its nearest gallery rows (the candidates), so that a service can use it: what a paper
does with the whole gallery is done with the candidates, and the query is never a row of the gallery.
"""
