-- For each day the highest close of the year before.
SELECT p.sym, p.day, (SELECT max(q.close) FROM prices q
                      WHERE q.sym = p.sym AND extract(year FROM q.day) = extract(year FROM p.day) - 1) AS high
FROM prices p
