-- For each day the last earlier day with a higher close.
SELECT p.sym, p.day, (SELECT max(q.day) FROM prices q WHERE q.sym = p.sym AND q.day < p.day AND q.close > p.close) AS higher
FROM prices p
