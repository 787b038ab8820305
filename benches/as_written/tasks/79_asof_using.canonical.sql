-- The quote at each trade, and how old it is.
SELECT t.id, q.bid, q.ts
FROM trades t
CROSS JOIN LATERAL (SELECT x.bid, x.ts FROM quotes x WHERE x.sym = t.sym AND x.ts <= t.ts ORDER BY x.ts DESC LIMIT 1) q
