-- Pairs of closed sessions of a sensor that overlap.
SELECT x.id AS one, y.id AS other
FROM sessions x
JOIN sessions y ON x.s = y.s AND x.id < y.id AND x.started < y.ended AND y.started < x.ended
