-- For each day the highest close of the year before.
SELECT p.sym, p.day, (SELECT max(q.close) FROM prices q
                      WHERE q.sym = p.sym AND q.day >= date_trunc('year', p.day) - INTERVAL '1 year' AND q.day < date_trunc('year', p.day)) AS high
FROM prices p
