-- The highest bid of the ten minutes before each order, whose times have a zone.
SELECT o.id, (SELECT max(q.bid) FROM quotes q
              WHERE q.sym = o.sym AND q.ts AT TIME ZONE 'UTC' BETWEEN o.ts - INTERVAL '10 minutes' AND o.ts) AS high
FROM orders o
