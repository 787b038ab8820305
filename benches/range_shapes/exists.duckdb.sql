SELECT count(*) FROM series p WHERE EXISTS (SELECT 1 FROM series x WHERE x.name = p.name AND x.ts > p.ts
  AND x.ts <= p.ts + INTERVAL '10 minutes' AND x.value > 2 * p.value)
