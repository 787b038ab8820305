-- The last quote before each trade.
SELECT t.id, q.bid, q.ask
FROM trades t
ASOF JOIN quotes q ON t.sym = q.sym AND t.ts >= q.ts
