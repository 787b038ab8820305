-- The quote at each trade, and how old it is.
SELECT t.id, q.bid, q.ts
FROM trades t
ASOF JOIN quotes q USING (sym, ts)
