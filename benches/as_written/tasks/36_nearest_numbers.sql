-- For each marked price level the two nearest bids.
SELECT m.id, t.bid
FROM levels m
CROSS JOIN LATERAL (
  SELECT q.bid FROM quotes q WHERE q.sym = m.sym
  ORDER BY abs(q.bid - m.level), q.bid LIMIT 2
) t
