-- The mean bid of the half hour before each trade.
SELECT t.id, (SELECT avg(q.bid) FROM quotes q
              WHERE q.sym = t.sym AND q.ts BETWEEN t.ts - INTERVAL '30 minutes' AND t.ts) AS mean
FROM trades t
