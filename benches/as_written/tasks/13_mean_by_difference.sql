-- The mean bid of the half hour before each trade.
SELECT t.id, (SELECT avg(q.bid) FROM quotes q
              WHERE q.sym = t.sym AND t.ts - q.ts BETWEEN INTERVAL '0 seconds' AND INTERVAL '30 minutes') AS mean
FROM trades t
