-- For each trade the two lowest asks within a minute of it.
SELECT t.id, q.ask
FROM trades t
LEFT JOIN LATERAL (
  SELECT q.ask FROM quotes q
  WHERE q.sym = t.sym AND q.ts >= t.ts - INTERVAL '1 minute' AND q.ts <= t.ts + INTERVAL '1 minute'
  ORDER BY q.ask LIMIT 2
) q ON true
