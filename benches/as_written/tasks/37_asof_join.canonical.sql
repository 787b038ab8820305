-- The last quote before each trade.
SELECT t.id, q.bid, q.ask
FROM trades t
CROSS JOIN LATERAL (SELECT q.bid, q.ask FROM quotes q WHERE q.sym = t.sym AND q.ts <= t.ts ORDER BY q.ts DESC LIMIT 1) q
