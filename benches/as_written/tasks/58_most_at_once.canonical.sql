-- The most sessions that were open at once.
SELECT max(n) AS most FROM (
  SELECT (SELECT count(*) FROM sessions y WHERE y.started <= x.started)
       - (SELECT count(*) FROM sessions y WHERE y.started <= x.started AND y.ended <= x.started) AS n
  FROM sessions x
)
