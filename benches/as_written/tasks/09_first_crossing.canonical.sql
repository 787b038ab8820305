-- For each day and symbol the first later day whose close is ten per cent higher.
SELECT * FROM (
  SELECT p.sym, p.day, (SELECT min(q.day) FROM prices q WHERE q.sym = p.sym AND q.day > p.day AND q.close >= 1.1 * p.close) AS crossed
  FROM prices p
) WHERE crossed IS NOT NULL
