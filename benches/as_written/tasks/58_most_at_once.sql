-- The most sessions that were open at once.
SELECT max(n) AS most FROM (
  SELECT x.id, (SELECT count(*) FROM sessions y WHERE y.started <= x.started AND (y.ended IS NULL OR y.ended > x.started)) AS n
  FROM sessions x
)
