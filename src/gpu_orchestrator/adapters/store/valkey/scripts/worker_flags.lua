#!lua flags=allow-oom
-- Set an operator's flags of a worker (fields cordoned, draining, devices, circuit), or remove its row.
-- Arguments: fence, name, fields {name, value, ...}, forget (1: remove the row, if the worker is offline; else nothing),
--   status for the event or '' for no event, device {index, uuid, 1 to cordon it | 0 to uncordon it} or {}
-- Answers {state or '' if unknown, api}
local fence, name, fields, forget, status, device = ARG[1], ARG[2], ARG[3], ARG[4], ARG[5], ARG[6]
local key = P .. 'w:' .. name
local row = redis.call('HMGET', key, 'state', 'api')

-- Done in the script and not by the caller, because several callers may change devices of one worker at a time.
-- Devices are kept by UUID: an index may be another device after a change of hardware. Older versions kept indexes.
local function cordon(index, uuid, cordoned)
  local chosen = {}
  for _, each in ipairs(cjson.decode(redis.call('HGET', key, 'cordoned_devices') or '[]')) do
    if each ~= index and each ~= uuid then chosen[#chosen + 1] = each end
  end
  if cordoned == 1 then chosen[#chosen + 1] = uuid end
  redis.call('HSET', key, 'cordoned_devices', #chosen > 0 and cjson.encode(chosen) or '[]')
end

if row[1] and (forget == 0 or row[1] == 'offline') then
  if #device > 0 then cordon(device[1], device[2], device[3]) end
  if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
  if redis.call('HGET', key, 'circuit') == '' or forget == 1 then close_circuit(name) end
  if forget == 1 then
    release_devices(name)
    redis.call('DEL', key, P .. 'on:' .. name, P .. 'of:' .. name, P .. 'd:' .. name)
    redis.call('SREM', P .. 'workers', name)
  end
  tell_worker(name)
  if status ~= '' then emit_worker('worker_status_changed', name, status, 'an operator said so') end
end
return answer(fence, {row[1] or '', row[2] or ''})
