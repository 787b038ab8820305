-- The last quote before each trade, by its time.
WITH last AS (
  SELECT t.id, t.sym, max(q.ts) AS ts
  FROM trades t
  JOIN quotes q ON q.sym = t.sym AND q.ts <= t.ts
  GROUP BY t.id, t.sym
)
SELECT l.id, q.bid
FROM last l
JOIN quotes q ON q.sym = l.sym AND q.ts = l.ts
