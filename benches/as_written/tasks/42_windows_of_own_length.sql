-- For each trade the highest bid of as many minutes before it as it has lots.
SELECT t.id, (SELECT max(q.bid) FROM quotes q
              WHERE q.sym = t.sym AND q.ts BETWEEN t.ts - t.qty * INTERVAL '1 minute' AND t.ts) AS high
FROM trades t
