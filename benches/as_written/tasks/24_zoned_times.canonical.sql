-- The highest bid of the ten minutes before each order, whose times have a zone.
SELECT o.id, (SELECT max(q.bid) FROM quotes q WHERE q.sym = o.sym AND q.ts BETWEEN o.ts - INTERVAL '10 minutes' AND o.ts) AS high
FROM (SELECT id, sym, arrow_cast(ts, 'Timestamp(µs)') AS ts FROM orders) o
