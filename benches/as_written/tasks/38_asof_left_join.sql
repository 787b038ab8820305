-- The first quote after each trade, if there is one.
SELECT t.id, q.bid, q.ask
FROM trades t
ASOF LEFT JOIN quotes q ON t.sym = q.sym AND t.ts < q.ts
