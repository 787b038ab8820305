-- The last quote before each trade.
SELECT DISTINCT ON (t.id) t.id, q.bid, q.ask
FROM trades t
JOIN quotes q ON q.sym = t.sym AND q.ts <= t.ts
ORDER BY t.id, q.ts DESC
