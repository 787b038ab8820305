-- The bid at the widest spread of the ten minutes before each trade.
SELECT t.id, max_by(q.bid, q.ask - q.bid) AS bid
FROM trades t
JOIN quotes q ON q.sym = t.sym AND q.ts BETWEEN t.ts - INTERVAL '10 minutes' AND t.ts
GROUP BY t.id
