-- The bid at the widest spread of the ten minutes before each trade; the first of equal ones.
SELECT t.id, max_by(q.bid, q.ask - q.bid ORDER BY q.ts) AS bid
FROM trades t
JOIN quotes q ON q.sym = t.sym AND q.ts BETWEEN t.ts - INTERVAL '10 minutes' AND t.ts
GROUP BY t.id
