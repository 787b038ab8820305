-- The last quote before each trade.
SELECT id, bid, ask FROM (
  SELECT t.id, q.bid, q.ask, row_number() OVER (PARTITION BY t.id ORDER BY q.ts DESC) AS rn
  FROM trades t
  LEFT JOIN quotes q ON q.sym = t.sym AND q.ts <= t.ts
) WHERE rn = 1
