#!lua flags=allow-oom
-- Store what workers measured on their devices.
-- Arguments: fence, reports {name, epoch, report JSON, alerts as in `set_alerts`, loaded models as in `set_models`}
-- Answers nothing
for _, each in ipairs(ARG[2]) do
  local key = P .. 'w:' .. each[1]
  if redis.call('HGET', key, 'epoch') == text(each[2]) then
    redis.call('HSET', key, 'report', each[3], 'reported', text(NOW))
    set_alerts(each[1], each[4])
    set_models(each[1], each[5])
    tell_worker(each[1])
  end
end
return answer(ARG[1], false)
