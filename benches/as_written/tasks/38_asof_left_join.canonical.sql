-- The first quote after each trade, if there is one.
SELECT t.id, q.bid, q.ask
FROM trades t
LEFT JOIN LATERAL (SELECT q.bid, q.ask FROM quotes q WHERE q.sym = t.sym AND q.ts > t.ts ORDER BY q.ts LIMIT 1) q ON true
