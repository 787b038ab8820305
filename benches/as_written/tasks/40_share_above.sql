-- For each trade the share of bids of the ten minutes before that were below its price.
SELECT t.id, (SELECT sum(CASE WHEN q.bid < t.price THEN 1 ELSE 0 END) / CAST(count(*) AS DOUBLE) FROM quotes q
              WHERE q.sym = t.sym AND q.ts BETWEEN t.ts - INTERVAL '10 minutes' AND t.ts) AS share
FROM trades t
